"""Messages between two processes on one host through shared memory."""
