"""An answer goes on when a replica that makes it is lost."""
