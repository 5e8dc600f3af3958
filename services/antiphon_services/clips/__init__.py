"""Reference recordings. This package contains the features and networks with which voice-cloning
models encode them.
"""
