module github.com/hashicorp/vault-client-go

go 1.25.0
