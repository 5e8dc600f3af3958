"""The gateway. It serves HTTP and gRPC clients and forwards their requests to the stages. It
doesn't depend on torch or on any model code.
"""

import os

# The matrices in this process are so small that waking a thread pool for each operation would cost
# many times more than it saves. OpenBLAS reads this variable only when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
