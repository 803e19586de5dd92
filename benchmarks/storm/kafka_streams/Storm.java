package storm;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The consumer ("totals") or a republisher ("republisher") on Kafka Streams, exactly once.
 *
 * <p>Arguments: which of them, bootstrap servers, application id, input topic, output topic, state directory.
 */
public final class Storm {
    private static final ObjectMapper MAPPER =
            new ObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    private static final Serde<String> TEXT = Serdes.String();

    private Storm() {}

    /** A fact. */
    static final class Item {
        public String robot;
        public long amount;
    }

    /** What a gateway reports. */
    static final class Report {
        public List<Item> items;
    }

    /** What is counted of a robot. */
    static final class Total {
        public long events;
        public long sum;

        Total add(Item item) {
            events += 1;
            sum += item.amount;
            return this;
        }
    }

    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        if (arguments[0].equals("republisher")) {
            republish(builder, arguments[3], arguments[4]);
        } else {
            count(builder, arguments[3], arguments[4]);
        }
        KafkaStreams streams =
                new KafkaStreams(builder.build(), settings(arguments[1], arguments[2], arguments[5]));
        // A thread that was fenced, or lost its broker, is replaced; the default ends the client.
        streams.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static void count(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(TEXT, json(Item.class)))
                .groupByKey(Grouped.with(TEXT, json(Item.class)))
                .aggregate(
                        Total::new,
                        (robot, item, total) -> total.add(item),
                        Materialized.<String, Total, KeyValueStore<Bytes, byte[]>>as("totals")
                                .withKeySerde(TEXT)
                                .withValueSerde(json(Total.class)))
                .toStream()
                .to(output, Produced.with(TEXT, json(Total.class)));
    }

    private static void republish(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(TEXT, json(Report.class)))
                .flatMap(
                        (gateway, report) ->
                                report.items.stream()
                                        .map(item -> KeyValue.pair(item.robot, item))
                                        .collect(Collectors.toList()))
                .to(output, Produced.with(TEXT, json(Item.class)));
    }

    private static Properties settings(String bootstrap, String application, String directory) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, directory);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 1_000);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 10_000);
        return settings;
    }

    private static <T> Serde<T> json(Class<T> type) {
        return Serdes.serdeFrom(
                (topic, value) -> value == null ? null : bytes(value),
                (topic, bytes) -> bytes == null ? null : value(bytes, type));
    }

    private static byte[] bytes(Object value) {
        try {
            return MAPPER.writeValueAsBytes(value);
        } catch (JsonProcessingException error) {
            throw new SerializationException(error);
        }
    }

    private static <T> T value(byte[] bytes, Class<T> type) {
        try {
            return MAPPER.readValue(bytes, type);
        } catch (IOException error) {
            throw new SerializationException(error);
        }
    }
}
