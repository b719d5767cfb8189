import MNS from "@alicloud/mns";

export const mns = new MNS("000000000000", {
  endpoint: process.env.VEILMQ_ENDPOINT ?? "http://127.0.0.1:9324",
  accessKeyId: "any",
  accessKeySecret: "any",
});
