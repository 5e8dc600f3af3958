"""Links between stage processes: the producer's end and the consumer's, file by file alike."""
