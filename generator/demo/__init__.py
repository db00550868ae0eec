"""The whole path on a processor alone: recorded replies, judged here, admitted for the occasion, and run.

``python -m generator.demo`` needs neither GPU nor key. It keeps everything it makes in a temporary folder.
"""
