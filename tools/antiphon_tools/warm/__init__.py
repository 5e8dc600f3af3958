"""Stages that start within a second: they are forked from a process that has their libraries."""
