"""Text processing for stages. It comprises chat templates, detokenization, stop strings and
function calls.
"""
