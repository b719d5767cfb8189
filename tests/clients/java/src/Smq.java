import com.aliyun.mns.client.CloudAccount;
import com.aliyun.mns.client.CloudQueue;
import com.aliyun.mns.client.MNSClient;
import com.aliyun.mns.common.ServiceException;
import com.aliyun.mns.common.http.ClientConfiguration;
import com.aliyun.mns.model.Message;
import com.aliyun.mns.model.QueueMeta;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.stream.Stream;

/** Operations of SMQ with Alibaba Cloud's SDK for Java. */
final class Smq {
    public static void main(String[] words) throws Exception {
        MNSClient client = new CloudAccount(
                        System.getenv("AWS_ACCESS_KEY_ID"),
                        System.getenv("AWS_SECRET_ACCESS_KEY"),
                        System.getenv("VEILMQ_ENDPOINT"),
                        null,
                        null,
                        new ClientConfiguration(),
                        System.getenv("AWS_REGION"))
                .getMNSClient();
        QueueMeta meta = new QueueMeta();
        meta.setQueueName("java-smq");
        meta.setVisibilityTimeout(45L);
        CloudQueue queue = client.createQueue(meta);
        Test.step("queues", () -> {
            Test.check(queue.getAttributes().getVisibilityTimeout() == 45L, queue.getAttributes());
            List<QueueMeta> listed = client.listQueue("java-s", "", 10).getResult();
            Test.check(listed.size() == 1, listed);
        });
        Test.step("message", () -> {
            queue.putMessage(new Message("höhe <&> \uD83D\uDE00"));
            Message got = queue.popMessage();
            Test.check(got.getMessageBody().equals("höhe <&> \uD83D\uDE00"), got);
            Test.check(got.getDequeueCount() == 1, got);
            queue.deleteMessage(got.getReceiptHandle());
            Test.check(queue.popMessage() == null, got);
        });
        Test.step("batches", () -> {
            queue.batchPutMessage(Stream.of("a", "b", "c").map(Message::new).toList());
            List<Message> got = queue.batchPopMessage(10);
            Test.check(got.stream().map(Message::getMessageBody).toList().equals(List.of("a", "b", "c")), got);
            queue.batchDeleteMessage(got.stream().map(Message::getReceiptHandle).toList());
        });
        Test.step("visibility", () -> {
            queue.putMessage(new Message("again"));
            Message first = queue.popMessage();
            queue.changeMessageVisibilityTimeout(first.getReceiptHandle(), 10);
            Test.ask("advance", 10_000);
            Message second = queue.popMessage();
            Test.check(second.getDequeueCount() == 2, second);
            queue.deleteMessage(second.getReceiptHandle());
        });
        Test.step("long_poll", () -> {
            FutureTask<Message> got = new FutureTask<>(() -> queue.popMessage(20));
            new Thread(got).start();
            Test.ask("parked", 0);
            queue.putMessage(new Message("woken"));
            Test.check(got.get().getMessageBody().equals("woken"), got);
        });
        Test.step("errors", () -> {
            CloudQueue none = client.getQueueRef("java-none");
            String code = Test.failure(ServiceException.class, none::popMessage).getErrorCode();
            Test.check(code.equals("QueueNotExist"), code);
        });
        client.close();
    }
}
