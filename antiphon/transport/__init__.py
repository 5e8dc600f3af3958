"""Transport between stage processes. It comprises links, payload transports, TLS and listening
sockets.
"""
