"""What schedules of the simulator ask of store and broker in memory is asked of real ones: the answers must be the same."""
