"""What developing needs and the product does not."""
