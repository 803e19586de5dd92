import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Debezium's engine, whose events go to Kafka, as a source task of Kafka Connect sends them; the argument is a file of settings. */
public final class DebeziumEngineMain {
    private DebeziumEngineMain() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        Map<String, Object> sender = Map.of("bootstrap.servers", settings.getProperty("bootstrap.servers"), "acks", "all");
        KafkaProducer<String, String> producer = new KafkaProducer<>(sender, new StringSerializer(), new StringSerializer());
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings)
            .using((success, message, error) -> {
                System.err.println("ended: " + message + " " + error);
                System.exit(success ? 0 : 1);
            })
            .notifying((List<ChangeEvent<String, String>> events, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    producer.send(new ProducerRecord<>(event.destination(), event.key(), event.value()));
                }
                producer.flush();
                for (ChangeEvent<String, String> event : events) {
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
            })
            .build();
        engine.run();
    }
}
