"""Communication between stage processes: links, payload transports, TLS, and listening sockets."""
