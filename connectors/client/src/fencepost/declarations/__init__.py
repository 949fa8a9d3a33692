"""Jobs that a file declares: the file read, compared with the server's jobs, and made true step by step.

job_file       the file: YAML, checked, every mistake with its place
definitions    one canonical form of a job's definition, and what differs between two
occurrences    when a job fires over a horizon, and which occurrences a change adds, removes and moves
load           how many runs become due in each minute
plan           all of it together, under a hash
application    carrying a plan out, unless what it was made from has moved
"""
