import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The stock client under the load of bench/client.py: async sends, so many in flight; then a push consumer. */
public class ClientLoad {
    static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        int warmup = Integer.parseInt(arguments[3]);
        int size = Integer.parseInt(arguments[4]);
        int inFlight = Integer.parseInt(arguments[5]);
        DefaultMQProducer producer = new DefaultMQProducer("BenchJavaProducer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        send(producer, topic, warmup, size, inFlight);
        long wall = System.nanoTime();
        long cpu = SYSTEM.getProcessCpuTime();
        int failed = send(producer, topic, count, size, inFlight);
        report("sent", count - failed, wall, cpu);
        producer.shutdown();
        consume(namesrv, topic, count + warmup);
        System.exit(0);
    }

    static int send(DefaultMQProducer producer, String topic, int count, int size, int inFlight) throws Exception {
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        byte[] body = new byte[size];
        for (int i = 0; i < count; i++) {
            room.acquire();
            producer.send(new Message(topic, body), new SendCallback() {
                public void onSuccess(SendResult result) {
                    room.release();
                }

                public void onException(Throwable problem) {
                    failed.incrementAndGet();
                    room.release();
                }
            }, 10_000);
        }
        room.acquire(inFlight);
        return failed.get();
    }

    static void consume(String namesrv, String topic, int expected) throws Exception {
        CountDownLatch left = new CountDownLatch(expected);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("BenchJavaConsumer");
        consumer.setNamesrvAddr(namesrv);
        consumer.subscribe(topic, "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (int i = 0; i < messages.size(); i++) {
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (left.getCount() > expected * 9L / 10) {
            Thread.sleep(1);
        }
        long begun = left.getCount();
        long wall = System.nanoTime();
        long cpu = SYSTEM.getProcessCpuTime();
        left.await();
        report("consumed", (int) begun, wall, cpu);
    }

    static void report(String what, int count, long wall, long cpu) {
        System.out.printf("{\"what\":\"%s\",\"count\":%d,\"seconds\":%.6f,\"cpu_seconds\":%.6f}%n", what, count,
            (System.nanoTime() - wall) / 1e9, (SYSTEM.getProcessCpuTime() - cpu) / 1e9);
        System.out.flush();
    }
}
