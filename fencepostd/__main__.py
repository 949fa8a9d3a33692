from fencepostd.cli import main

main()
