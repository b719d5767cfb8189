import { SQSClient } from "@aws-sdk/client-sqs";

export const sqs = new SQSClient({
  endpoint: process.env.VEILMQ_ENDPOINT ?? "http://127.0.0.1:9324",
  region: "us-east-1",
  credentials: { accessKeyId: "any", secretAccessKey: "any" },
});
