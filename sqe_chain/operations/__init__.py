"""What one does to a flow, beyond its batches: rebuild, republish, move, forget, change readers, replay dead-letter records."""
