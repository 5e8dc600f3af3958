"""The gateway, which serves HTTP and gRPC clients and forwards their requests to the stages. It
depends on neither torch nor any model code.
"""

import os

# The matrices here are so small that waking a thread pool for each operation costs many times what
# it saves. OpenBLAS only reads this variable when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
