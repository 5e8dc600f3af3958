"""Links between stage processes. The packages for the producer's end and the consumer's end have
parallel modules.
"""
