"""The gateway: HTTP and gRPC in front of the stages. No torch, no model code."""

import os

# Its matrices are small, and threads that spin for each of them cost many times what they save.
# numpy's library reads this once, when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
