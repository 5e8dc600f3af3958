"""Injects faults into a running deployment and checks that clients still receive the same
answers.
"""
