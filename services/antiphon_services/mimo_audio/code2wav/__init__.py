"""The code2wav stage, which converts codes to samples with the decoder of the audio tokenizer."""
