// Empty: with an assembly file in the package, Go lets newManagerImpl be declared without a body.
