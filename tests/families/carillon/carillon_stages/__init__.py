"""The stages of the carillon."""
