"""The schema of a deployment file, which the stages, the gateway, the launcher and the
chart read.
"""
