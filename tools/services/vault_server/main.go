// Command vault_server is HashiCorp Vault with what the tests need: KV and AppRole, in memory, unsealed.
//
//	vault_server ADDRESS FILE
//
// The root token is written to the file.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/hashicorp/go-hclog"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

// none: what is built in is named above. The registry that Vault has itself brings the clients of every cloud.
type none struct{}

func (none) Contains(string, consts.PluginType) bool                           { return false }
func (none) Get(string, consts.PluginType) (func() (interface{}, error), bool) { return nil, false }
func (none) Keys(consts.PluginType) []string                                   { return nil }
func (none) DeprecationStatus(string, consts.PluginType) (consts.DeprecationStatus, bool) {
	return 0, false
}
func (none) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

func main() {
	address, file := os.Args[1], os.Args[2]
	log := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn})
	storage, err := inmem.NewInmem(nil, log)
	check(err)
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:           storage,
		DisableMlock:       true,
		Logger:             log,
		LogicalBackends:    map[string]logical.Factory{"kv": kv.Factory},
		CredentialBackends: map[string]logical.Factory{"approle": approle.Factory},
		BuiltinRegistry:    none{},
	})
	check(err)
	one := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1}
	made, err := core.Initialize(context.Background(), &vault.InitParams{BarrierConfig: one})
	check(err)
	_, err = core.Unseal(made.SecretShares[0])
	check(err)
	check(os.WriteFile(file, []byte(made.RootToken), 0o600))
	properties := &vault.HandlerProperties{Core: core, ListenerConfig: &configutil.Listener{Address: address}}
	check(http.ListenAndServe(address, vaulthttp.Handler.Handler(properties)))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
