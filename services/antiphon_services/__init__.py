"""The stages of all families. Each family has a folder, which contains a folder for each of its
stages. The other packages are shared by all families.
"""
