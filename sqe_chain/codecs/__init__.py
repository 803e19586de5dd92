"""What payloads look like as bytes."""
