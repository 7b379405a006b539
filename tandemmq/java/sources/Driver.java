import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;
import org.apache.rocketmq.tools.command.offset.GetConsumerStatusCommand;

/**
 * Runs stock clients and tools for the Python tests: one JSON command per line in, one JSON line out per answer or event.
 *
 * Commands carry "id" and "op"; the answer is {"id", "ok"} or {"id", "error", "kind", "code"}. Events carry "event".
 * The source compiles against every client release under test, so types that moved between releases are not named.
 */
public final class Driver {
    private static final Object OUTPUT = new Object();
    private static final Object ADMIN = new Object();
    private static PrintStream out;

    private final Producers producers = new Producers();
    private final Transactions transactions = new Transactions();
    private final PushConsumers pushes = new PushConsumers(producers);
    private final Pulls pulls = new Pulls();

    public static void main(String[] args) throws Exception {
        out = System.out;
        System.setOut(System.err);
        Driver driver = new Driver();
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        addUnlistedCommand();
        event("ready", new LinkedHashMap<>());
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            workers.execute(() -> driver.answer(command));
        }
        // The test process closed our input: it is done, or it died. Clients that it did not stop go with us.
        Runtime.getRuntime().halt(0);
    }

    static void event(String name, Map<String, Object> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", name);
        line.putAll(fields);
        write(line);
    }

    private static void write(Map<String, Object> line) {
        byte[] bytes = (JSON.toJSONString(line, SerializerFeature.WriteMapNullValue) + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUTPUT) {
            out.write(bytes, 0, bytes.length);
            out.flush();
        }
    }

    private void answer(JSONObject command) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", command.get("id"));
        try {
            line.put("ok", run(command));
        } catch (Throwable failure) {
            line.put("error", String.valueOf(failure.getMessage()));
            line.put("kind", failure.getClass().getSimpleName());
            line.put("code", responseCode(failure));
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace, true));
            line.put("trace", trace.toString());
        }
        write(line);
    }

    private static Object responseCode(Throwable failure) {
        try {
            return failure.getClass().getMethod("getResponseCode").invoke(failure);
        } catch (ReflectiveOperationException absent) {
            return null;
        }
    }

    private Object run(JSONObject c) throws Exception {
        switch (c.getString("op")) {
            case "producer.start": return producers.start(c);
            case "producer.stop": return producers.stop(c);
            case "producer.queues": return producers.queues(c);
            case "send.sync": return producers.sendSync(c);
            case "send.async": return producers.sendAsync(c);
            case "send.oneway": return producers.sendOneway(c);
            case "send.batch": return producers.sendBatch(c);
            case "send.selector": return producers.sendSelector(c);
            case "send.queue": return producers.sendToQueue(c);
            case "request.sync": return producers.requestSync(c);
            case "request.async": return producers.requestAsync(c);
            case "tx.start": return transactions.start(c);
            case "tx.stop": return transactions.stop(c);
            case "tx.send": return transactions.send(c);
            case "send.recall": return producers.recall(c);
            case "push.start": return pushes.start(c);
            case "push.stop": return pushes.stop(c);
            case "push.suspend": return pushes.suspend(c);
            case "push.resume": return pushes.resume(c);
            case "push.queues": return pushes.queues(c);
            case "push.unfinished": return pushes.unfinished(c);
            case "pull.start": return pulls.start(c);
            case "pull.stop": return pulls.stop(c);
            case "pull.queues": return pulls.queues(c);
            case "pull.pull": return pulls.pull(c);
            case "pull.drain": return pulls.drain(c);
            case "pull.offsets": return pulls.offsets(c);
            case "pull.commit": return pulls.commit(c);
            case "pull.committed": return pulls.committed(c);
            case "pull.view": return pulls.view(c);
            case "pull.query": return pulls.query(c);
            case "pull.create_topic": return pulls.createTopic(c);
            case "lite.start": return pulls.liteStart(c);
            case "lite.stop": return pulls.liteStop(c);
            case "lite.poll": return pulls.litePoll(c);
            case "lite.seek": return pulls.liteSeek(c);
            case "lite.commit": return pulls.liteCommit(c);
            case "lite.committed": return pulls.liteCommitted(c);
            case "lite.offset_for_time": return pulls.liteOffsetForTime(c);
            case "mqadmin": return mqadmin(c);
            default: throw new IllegalArgumentException("no such op: " + c.getString("op"));
        }
    }

    /** RocketMQ ships getConsumerStatus and does not list it: what it asks brokers and clients only it asks. */
    private static void addUnlistedCommand() throws ReflectiveOperationException {
        java.lang.reflect.Method add = MQAdminStartup.class.getDeclaredMethod("initCommand", SubCommand.class);
        add.setAccessible(true);
        add.invoke(null, new GetConsumerStatusCommand());
    }

    /** Runs one mqadmin subcommand in this process and returns what it printed. */
    private static String mqadmin(JSONObject c) throws Exception {
        String[] args = c.getJSONArray("args").toArray(new String[0]);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        synchronized (ADMIN) {
            PrintStream before = System.out;
            PrintStream errorsBefore = System.err;
            PrintStream capture = new PrintStream(printed, true, "UTF-8");
            System.setOut(capture);
            System.setErr(capture);
            try {
                MQAdminStartup.main0(args, null);
            } finally {
                System.setOut(before);
                System.setErr(errorsBefore);
            }
        }
        return printed.toString("UTF-8");
    }
}
