module portreeve.test/openreports

go 1.25.0

// The definition of ClusterReport. An API server checks the output of `-o openreports` with it. Nothing of the module is compiled.
require github.com/openreports/reports-api v0.2.1
