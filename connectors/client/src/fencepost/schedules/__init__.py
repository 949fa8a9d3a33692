# Generated from schemas/ by connectors/client/generate_copies.py (make copies): change it there.
"""The server's rules of schedules, for seeing schedules without one. All files are copies."""
