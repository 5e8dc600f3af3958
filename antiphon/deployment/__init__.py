"""The schema of a deployment file. The stages, the gateway, the launcher and the chart all read
this file.
"""
