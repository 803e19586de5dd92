package peers;

import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;

/**
 * Runs one workload until it is killed, and prints "first" with the first record.
 *
 * <p>Arguments: workload, bootstrap servers, application id, input topic, output topic, state directory, and further
 * settings as {@code name=value}.
 */
public final class Main {
    private static final int THREADS = 2;
    private static final int COMMIT_INTERVAL_MS = 1_000;
    private static final int FIRST_SETTING = 6;

    private Main() {}

    public static void main(String[] arguments) {
        Topology topology = Topologies.of(arguments[0], arguments[3], arguments[4], tellFirst());
        KafkaStreams streams =
                new KafkaStreams(topology, settings(arguments[1], arguments[2], arguments[5], arguments));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Properties settings(
            String bootstrap, String application, String stateDirectory, String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, stateDirectory);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, THREADS);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, COMMIT_INTERVAL_MS);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        for (int place = FIRST_SETTING; place < arguments.length; place++) {
            String[] setting = arguments[place].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        return settings;
    }

    private static Runnable tellFirst() {
        AtomicBoolean told = new AtomicBoolean();
        return () -> {
            if (!told.get() && told.compareAndSet(false, true)) {
                System.out.println("first");
            }
        };
    }
}
