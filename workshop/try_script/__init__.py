"""`rn50 workshop try SCRIPT -n 2`: a script that trains in parallel, judged by what it did.

command    starts the script on several ranks, and on one, with a recorder in each process
folder     copies the folder that the script runs in, so that the original does not change
recorder   runs inside the script's processes and writes down what passes by
report     reads what was written down and says which of the changes are there, with evidence
"""
