"""Links between stage processes. The producer's end and the consumer's end are separate packages
with corresponding modules.
"""
