import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Prints what the stock strategies and the hash selector choose, one JSON object per line. */
public class Allocations {
    static final String[] BROKERS = {"broker-a", "room1@broker-b", "room1@broker-c", "room2@broker-d", "room3@broker-e"};
    static final String[] KEYS = {"", "a", "order-17", "polygenelubricants", "\u00fc\u00f1\u00ee", "\ud83d\ude00", "0123456789", "key 3"};

    public static void main(String[] arguments) {
        for (int queues = 1; queues <= 17; queues += 4) {
            for (int clients = 1; clients <= 6; clients++) {
                allocate(queues(queues), clients(clients));
            }
        }
        for (int queues = 1; queues <= 9; queues += 2) {
            for (String key : KEYS) {
                List<MessageQueue> all = queues(queues);
                MessageQueue chosen = new SelectMessageQueueByHash().select(all, new Message("T", new byte[1]), key);
                System.out.println("{\"key\":" + quoted(key) + ",\"queues\":" + listed(all)
                    + ",\"chosen\":" + listed(Collections.singletonList(chosen)) + "}");
            }
        }
    }

    static void allocate(List<MessageQueue> queues, List<String> clients) {
        AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
        rooms.setConsumeridcs(new HashSet<>(Arrays.asList("room1", "room3")));
        AllocateMessageQueueStrategy nearby = new AllocateMachineRoomNearby(
            new AllocateMessageQueueAveragely(), new AllocateMachineRoomNearby.MachineRoomResolver() {
                public String brokerDeployIn(MessageQueue queue) {
                    return queue.getBrokerName().contains("@") ? queue.getBrokerName().split("@")[0] : "room0";
                }

                public String consumerDeployIn(String client) {
                    return "room" + (client.charAt(client.length() - 1) - '0') % 3;
                }
            });
        AllocateMessageQueueStrategy[] strategies = {
            new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(), rooms, nearby,
            new AllocateMessageQueueConsistentHash()
        };
        for (AllocateMessageQueueStrategy strategy : strategies) {
            for (String own : clients) {
                List<MessageQueue> mine = strategy.allocate("G", own, queues, clients);
                System.out.println("{\"strategy\":" + quoted(strategy.getName()) + ",\"own\":" + quoted(own)
                    + ",\"clients\":" + clients.size() + ",\"queues\":" + listed(queues)
                    + ",\"mine\":" + listed(mine) + "}");
            }
        }
    }

    static List<MessageQueue> queues(int count) {
        List<MessageQueue> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(new MessageQueue("T", BROKERS[i % BROKERS.length], i / BROKERS.length));
        }
        Collections.sort(all);
        return all;
    }

    static List<String> clients(int count) {
        List<String> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add("10.0.0." + (i + 1) + "@" + (100 + i * 7) + "#" + i);
        }
        Collections.sort(all);
        return all;
    }

    static String listed(List<MessageQueue> queues) {
        List<String> parts = new ArrayList<>();
        for (MessageQueue queue : queues) {
            parts.add(quoted(queue.getBrokerName() + ":" + queue.getQueueId()));
        }
        return "[" + String.join(",", parts) + "]";
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            out.append(c < 32 || c > 126 || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        return out.append('"').toString();
    }
}
