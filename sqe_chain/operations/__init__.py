"""What one does to a flow, above the steps of a batch: rebuild, republish, move, forget, change readers, replay dead letters."""
