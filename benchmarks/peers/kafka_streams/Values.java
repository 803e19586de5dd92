package peers;

/** What records, states and outputs are made of; the JSON has the same fields. */
final class Values {
    private Values() {}

    /** A record of the input. */
    static final class Fastening {
        public String robot;
        public String line;
        public String joint;
        public long report;
        public long fastened;
        public long failed;
    }

    /** One of the two things that a record says. */
    static final class Screws {
        public String robot;
        public String joint;
        public long report;
        public long screws;

        Screws() {}

        Screws(String robot, String joint, long report, long screws) {
            this.robot = robot;
            this.joint = joint;
            this.report = report;
            this.screws = screws;
        }
    }

    /** How many records a window of a robot has. */
    static final class Count {
        public String key;
        public long start_ms;
        public long events;

        Count() {}

        Count(String key, long startMs, long events) {
            this.key = key;
            this.start_ms = startMs;
            this.events = events;
        }
    }

    /** The sums of a robot, or of a line. */
    static final class Total {
        public long events;
        public long fastened;
        public long failed;

        Total add(long moreFastened, long moreFailed) {
            events += 1;
            fastened += moreFastened;
            failed += moreFailed;
            return this;
        }
    }

    /** What one record adds to its line. */
    static final class Delta {
        public String line;
        public long fastened;
        public long failed;

        Delta() {}

        Delta(Fastening fastening) {
            line = fastening.line;
            fastened = fastening.fastened;
            failed = fastening.failed;
        }
    }
}
