"""Links between stage processes: the producer's end and the consumer's, with parallel modules."""
