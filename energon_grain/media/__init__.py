# SPDX-License-Identifier: Apache-2.0
"""Video and audio: decoding of clips, and media metadata without decoding."""
