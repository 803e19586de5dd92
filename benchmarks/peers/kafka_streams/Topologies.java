package peers;

import java.time.Duration;
import java.util.List;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** The workloads. */
final class Topologies {
    private static final int PARTITIONS = 4;
    private static final String PER_ROBOT = "per-robot";
    private static final String PER_LINE = "per-line";
    private static final String SEEN = "seen";
    private static final Duration WINDOW = Duration.ofSeconds(10);
    private static final Duration INTERVAL = Duration.ofSeconds(10);
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Values.Fastening> FASTENING = Json.of(Values.Fastening.class);
    private static final Serde<Values.Screws> SCREWS = Json.of(Values.Screws.class);
    private static final Serde<Values.Total> TOTAL = Json.of(Values.Total.class);
    private static final Serde<Values.Delta> DELTA = Json.of(Values.Delta.class);
    private static final Serde<Values.Count> COUNT = Json.of(Values.Count.class);

    private Topologies() {}

    static Topology of(String workload, String input, String output, Runnable atEach) {
        StreamsBuilder builder = new StreamsBuilder();
        if (workload.equals("w5-second-service")) {
            foldScrews(builder, input, output, atEach);
            return builder.build();
        }
        KStream<String, Values.Fastening> fastenings =
                builder.stream(input, Consumed.with(TEXT, FASTENING))
                        .peek((robot, fastening) -> atEach.run());
        switch (workload) {
            case "w1-flat-map" -> flatMap(fastenings, output);
            case "w2-fold" -> fold(fastenings, output);
            case "w3-two-stages" -> twoStages(builder, fastenings, output);
            case "w4-windows" -> windows(fastenings, output);
            case "w5-chain" -> flatMap(fastenings, output);
            case "w6-filter" -> filter(builder, fastenings, output);
            default -> throw new IllegalArgumentException("unknown workload: " + workload);
        }
        return builder.build();
    }

    private static void flatMap(KStream<String, Values.Fastening> fastenings, String output) {
        fastenings.flatMap((robot, value) -> both(value)).to(output, Produced.with(TEXT, SCREWS));
    }

    private static List<KeyValue<String, Values.Screws>> both(Values.Fastening value) {
        String other = value.robot + "!";
        return List.of(
                KeyValue.pair(
                        value.robot,
                        new Values.Screws(value.robot, value.joint, value.report, value.fastened)),
                KeyValue.pair(
                        other, new Values.Screws(other, value.joint, value.report, value.failed)));
    }

    private static void fold(KStream<String, Values.Fastening> fastenings, String output) {
        fastenings
                .groupByKey(Grouped.with(TEXT, FASTENING))
                .aggregate(
                        Values.Total::new,
                        (robot, value, total) -> total.add(value.fastened, value.failed),
                        totals(PER_ROBOT))
                .toStream()
                .to(output, Produced.with(TEXT, TOTAL));
    }

    private static void twoStages(
            StreamsBuilder builder, KStream<String, Values.Fastening> fastenings, String output) {
        builder.addStateStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(PER_ROBOT), TEXT, TOTAL)
                        .withCachingEnabled());
        fastenings
                .process(PerRobot::new, PER_ROBOT)
                .repartition(Repartitioned.with(TEXT, DELTA).withName("lines").withNumberOfPartitions(PARTITIONS))
                .groupByKey(Grouped.with(TEXT, DELTA))
                .aggregate(
                        Values.Total::new,
                        (line, delta, total) -> total.add(delta.fastened, delta.failed),
                        totals(PER_LINE))
                .toStream()
                .to(output, Produced.with(TEXT, TOTAL));
    }

    /** The second service of W5: sums of what the first one publishes. */
    private static void foldScrews(StreamsBuilder builder, String input, String output, Runnable atEach) {
        builder.stream(input, Consumed.with(TEXT, SCREWS))
                .peek((robot, screws) -> atEach.run())
                .groupByKey(Grouped.with(TEXT, SCREWS))
                .aggregate(
                        Values.Total::new,
                        (robot, value, total) -> total.add(value.screws, 0),
                        totals(PER_ROBOT))
                .toStream()
                .to(output, Produced.with(TEXT, TOTAL));
    }

    private static void windows(KStream<String, Values.Fastening> fastenings, String output) {
        fastenings
                .groupByKey(Grouped.with(TEXT, FASTENING))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(WINDOW))
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(PER_ROBOT))
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                .toStream()
                .map(
                        (window, events) ->
                                KeyValue.pair(
                                        window.key(),
                                        new Values.Count(window.key(), window.window().start(), events)))
                .to(output, Produced.with(TEXT, COUNT));
    }

    private static void filter(
            StreamsBuilder builder, KStream<String, Values.Fastening> fastenings, String output) {
        builder.addStateStore(
                Stores.windowStoreBuilder(
                        Stores.persistentWindowStore(SEEN, INTERVAL.multipliedBy(2), INTERVAL, false),
                        TEXT,
                        Serdes.Long()));
        fastenings.process(Once::new, SEEN).to(output, Produced.with(TEXT, FASTENING));
    }

    private static Materialized<String, Values.Total, KeyValueStore<Bytes, byte[]>> totals(String name) {
        return Materialized.<String, Values.Total, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(TEXT)
                .withValueSerde(TOTAL);
    }

    /** Forwards a report of a robot unless one of the same number was there within the interval. */
    private static final class Once
            extends ContextualProcessor<String, Values.Fastening, String, Values.Fastening> {
        private WindowStore<String, Long> seen;

        @Override
        public void init(ProcessorContext<String, Values.Fastening> context) {
            super.init(context);
            seen = context.getStateStore(SEEN);
        }

        @Override
        public void process(Record<String, Values.Fastening> record) {
            String id = record.key() + "#" + record.value().report;
            long time = record.timestamp();
            long interval = INTERVAL.toMillis();
            try (WindowStoreIterator<Long> earlier = seen.fetch(id, time - interval, time + interval)) {
                if (earlier.hasNext()) {
                    return;
                }
            }
            seen.put(id, time, time);
            context().forward(record);
        }
    }

    /** Adds a record to its robot, and tells the line. */
    private static final class PerRobot
            extends ContextualProcessor<String, Values.Fastening, String, Values.Delta> {
        private KeyValueStore<String, Values.Total> totals;

        @Override
        public void init(ProcessorContext<String, Values.Delta> context) {
            super.init(context);
            totals = context.getStateStore(PER_ROBOT);
        }

        @Override
        public void process(Record<String, Values.Fastening> record) {
            Values.Fastening value = record.value();
            Values.Total total = totals.get(record.key());
            totals.put(
                    record.key(),
                    (total == null ? new Values.Total() : total).add(value.fastened, value.failed));
            Values.Delta delta = new Values.Delta(value);
            context().forward(record.withKey(delta.line).withValue(delta));
        }
    }
}
