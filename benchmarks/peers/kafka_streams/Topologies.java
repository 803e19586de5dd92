package peers;

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
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** The workloads. */
final class Topologies {
    private static final int PARTITIONS = 4;
    private static final String PER_ROBOT = "per-robot";
    private static final String PER_LINE = "per-line";
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Values.Fastening> FASTENING = Json.of(Values.Fastening.class);
    private static final Serde<Values.Screws> SCREWS = Json.of(Values.Screws.class);
    private static final Serde<Values.Total> TOTAL = Json.of(Values.Total.class);
    private static final Serde<Values.Delta> DELTA = Json.of(Values.Delta.class);

    private Topologies() {}

    static Topology of(String workload, String input, String output, Runnable atEach) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, Values.Fastening> fastenings =
                builder.stream(input, Consumed.with(TEXT, FASTENING))
                        .peek((robot, fastening) -> atEach.run());
        switch (workload) {
            case "w1-flat-map" -> flatMap(fastenings, output);
            case "w2-fold" -> fold(fastenings, output);
            case "w3-two-stages" -> twoStages(builder, fastenings, output);
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

    private static Materialized<String, Values.Total, KeyValueStore<Bytes, byte[]>> totals(String name) {
        return Materialized.<String, Values.Total, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(TEXT)
                .withValueSerde(TOTAL);
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
