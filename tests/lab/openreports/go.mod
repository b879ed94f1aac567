module portreeve.test/openreports

go 1.25.0

// The definition of ClusterReport, with which an API server checks what `-o openreports` prints. Nothing of the module is compiled.
require github.com/openreports/reports-api v0.2.1
