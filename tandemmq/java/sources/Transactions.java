import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Stock transactional producers by name. What becomes of a message its properties "local" and "check" say, names of
 * LocalTransactionState; a check is answered with the producer's "check" instead if it has one, and told as a message
 * event under the producer's name.
 */
final class Transactions {
    private final Map<String, TransactionMQProducer> byName = new ConcurrentHashMap<>();

    Object start(JSONObject c) throws Exception {
        String name = c.getString("name");
        String check = c.getString("check");
        TransactionMQProducer producer = c.containsKey("traceTopic")
            ? new TransactionMQProducer(null, c.getString("group"), Texts.signing(c), true, c.getString("traceTopic"))
            : new TransactionMQProducer(c.getString("group"));
        producer.setNamesrvAddr(c.getString("namesrv"));
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(10000);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return state(message, "local");
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Map<String, Object> fields = new LinkedHashMap<>();
                fields.put("consumer", name);
                fields.put("atMs", System.currentTimeMillis());
                fields.put("message", Texts.received(message));
                Driver.event("message", fields);
                return check == null ? state(message, "check") : LocalTransactionState.valueOf(check);
            }
        });
        producer.start();
        byName.put(name, producer);
        return Collections.emptyMap();
    }

    Object stop(JSONObject c) {
        byName.remove(c.getString("name")).shutdown();
        return Collections.emptyMap();
    }

    Object send(JSONObject c) throws Exception {
        List<Object> results = new ArrayList<>();
        for (Message message : Texts.messages(c)) {
            TransactionSendResult sent = byName.get(c.getString("name")).sendMessageInTransaction(message, null);
            Map<String, Object> map = Texts.sent(sent);
            map.put("transactionId", sent.getTransactionId());
            map.put("state", sent.getLocalTransactionState().name());
            results.add(map);
        }
        return results;
    }

    private static LocalTransactionState state(Message message, String property) {
        String name = message.getUserProperty(property);
        return name == null ? LocalTransactionState.UNKNOW : LocalTransactionState.valueOf(name);
    }
}
