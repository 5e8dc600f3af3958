"""The gateway, which provides HTTP and gRPC for the stages. It contains no torch and no
model code.
"""

import os

# The matrices here are small. Threads that spin for each of them would cost many times what they
# save. numpy's library reads this variable once, when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
