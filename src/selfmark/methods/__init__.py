"""Discovery methods of other papers, behind the contract of `discovery.discover`."""
