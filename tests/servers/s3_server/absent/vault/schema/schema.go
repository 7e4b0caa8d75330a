// Package schema has the requests and answers of package vault.
package schema

type (
	AppRoleLoginRequest      struct{ RoleId, SecretId string }
	KvV2ReadResponse         struct{ Data, Metadata map[string]any }
	KvV2WriteRequest         struct{ Data, Options map[string]any }
	KvV2WriteMetadataRequest struct{ DeleteVersionAfter string }
	StandardListResponse     struct{ Keys []string }
)
