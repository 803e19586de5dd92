import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;

/**
 * Debezium's engine, whose events pass converters and go to Kafka, as a source task of Kafka Connect sends them; the argument is a file of
 * settings.
 */
public final class DebeziumEngineMain {
    private DebeziumEngineMain() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        Converter keys = converter(settings, "key.converter");
        Converter values = converter(settings, "value.converter");
        Map<String, Object> sender = Map.of("bootstrap.servers", settings.getProperty("bootstrap.servers"), "acks", "all");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(sender, new ByteArraySerializer(), new ByteArraySerializer());
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
            .using(settings)
            .using((success, message, error) -> {
                System.err.println("ended: " + message + " " + error);
                System.exit(success ? 0 : 1);
            })
            .notifying((List<ChangeEvent<SourceRecord, SourceRecord>> events,
                    DebeziumEngine.RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) -> {
                for (ChangeEvent<SourceRecord, SourceRecord> event : events) {
                    SourceRecord record = event.value();
                    byte[] key = keys.fromConnectData(record.topic(), record.keySchema(), record.key());
                    byte[] value = values.fromConnectData(record.topic(), record.valueSchema(), record.value());
                    producer.send(new ProducerRecord<>(record.topic(), key, value));
                }
                producer.flush();
                for (ChangeEvent<SourceRecord, SourceRecord> event : events) {
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
            })
            .build();
        engine.run();
    }

    private static Converter converter(Properties settings, String name) throws ReflectiveOperationException {
        Map<String, String> own = new HashMap<>();
        for (String setting : settings.stringPropertyNames()) {
            if (setting.startsWith(name + ".")) {
                own.put(setting.substring(name.length() + 1), settings.getProperty(setting));
            }
        }
        Converter converter = (Converter) Class.forName(settings.getProperty(name)).getDeclaredConstructor().newInstance();
        converter.configure(own, name.equals("key.converter"));
        return converter;
    }
}
