"""The language model on vLLM: its layers and its paged memory.

Runs in vLLM's processes: `model`. Runs in the stage: everything else. A session of the stage is one
request of vLLM whose input grows by a position a step. A position of text is its id. A group of
frames is a row that the stage's group encoder has made. The last hidden state of each position
comes back, and the stage draws from it as the torch engine does.
"""
